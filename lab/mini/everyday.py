"""Everyday words on the demo's collection: is a fair drawing among the first five, judged by its name?

    genius demo && python -m lab.mini.everyday demo.genius

The judge is a list of words: a drawing is fair if one of them begins a word of its name (short ones must be a whole word). That
is kinder than a person here and stricter there: good for comparing. `NEW` was written without looking at answers, and its words
made stricter after; `KNOWN` holds the phrases of an earlier list that had failed.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

NEW = """
physician: doctor,health worker,stethoscope,medical,nurse
angry: angry,pouting,enraged,anger,steam from nose,rage,mad
put out a fire: extinguisher,firefighter,fire engine,hydrant,sprinkler
pet that barks: dog,poodle,puppy
freezing weather: snow,cold,ice,temperature low,temperature minus,freez,thermometer
no connection: wifi off,disconnect,plug off,unlink,no signal,cloud off,plug connected x,network off,signal off
send a letter: envelope,mail,letter,paper plane,send,postbox
something to write with: pen,pencil,writing,marker,quill
write something down: note,pen,write,memo,edit,clipboard,notebook
take a photo: camera,photo
listen to music: headphone,music,note,radio,guitar,airpod
time to wake up: alarm,clock,sunrise,rooster
go to sleep: sleep,bed,zzz,moon,night,yawn
it is raining: rain,umbrella
very hot day: sun,hot,temperature plus,thermometer,heat
in love: heart,love,kiss
break up: broken heart,heart broken,heart off
happy birthday: birthday,cake,gift,party,balloon,present
congratulations: party,confetti,clap,trophy,celebrat,popper
baby: baby,stroller,bottle,child
something is wrong: alert,warning,error,exclamation,bug
danger: warning,danger,skull,alert,hazard,biohazard,radioactive,triangle
poison: skull,poison,biohazard,flask,toxic
secret: lock,secret,shush,spy,key,incognito,eye off,quiet
keep quiet: shush,mute,quiet,silent,volume off,no sound,zipper
too loud: volume,speaker,loud,ear
cannot hear: deaf,ear,mute
cannot see: blind,eye off,eye slash,invisible
drink in the morning: coffee,tea,cup,mug,juice,milk
alcohol: beer,wine,cocktail,glass,whiskey,sake,bottle,champagne
something sweet: candy,lollipop,cookie,cake,ice cream,doughnut,donut,chocolate,honey,cupcake,dessert,shaved ice,custard
fast food: burger,fries,pizza,hot dog,hotdog,hamburger,taco,sandwich
breakfast: egg,bacon,pancake,waffle,croissant,bread,toast,cooking,bagel,cereal,coffee,milk
hungry: food,fork,eat,tongue,yum,drool,plate,savoring,meat,burger,knife,bowl
thirsty: water,glass,cup,drink,bottle,drop
vegetarian: leaf,leafy,salad,carrot,vegetable,plant,broccoli,seedling,meat off,vegan
king of the jungle: lion,tiger,leopard
animal with a trunk: elephant,mammoth
animal that flies: bird,bat,eagle,butterfly,bee,duck,parrot,dove,owl
animal that gives milk: cow,goat,ox,milk
insect: bug,bee,ant,beetle,fly,mosquito,cricket,ladybug,lady beetle,butterfly,cockroach,caterpillar
lives in the sea: fish,whale,shark,dolphin,octopus,crab,shell,seal,squid,lobster,jelly,coral,shrimp
farm animal: cow,pig,sheep,goat,horse,chicken,rooster,ram,hen,duck,turkey,ox
tall building: building,skyscraper,tower,city
place to pray: church,mosque,temple,synagogue,shrine,kaaba,pray,worship,hindu,torii
where children learn: school,teacher,student,book,education,chalkboard,graduation
place to borrow books: book,library
see a movie: film,movie,cinema,clapper,theater,video,camera,projector,popcorn,ticket
play a game: game,joystick,dice,chess,controller,puzzle,playing
gambling: dice,slot,casino,card,poker,chip,joker,roulette,spade,die
winter sport: ski,snowboard,skat,sled,hockey,curling
swimming: swim,pool,wave,goggles
running: run,shoe,walk
lift weights: barbell,weight,dumbbell,gym
ride a bike: bik,bicycle,cycl
travel by air: plane,airplane,flight,helicopter,airport,departure
travel by sea: ship,boat,ferry,sail,anchor,canoe
public transport: bus,train,tram,metro,subway,rail,trolley
fuel: gas,fuel,charging,petrol,oil,pump
broken car: car,wrench,crash,garage,tow
stop: stop,hand,octagon,prohibited,pause
not allowed: prohibited,no,forbid,ban,off,circle slash,cancel
agree: thumb,check,handshake,ok
disagree: thumbs down,x,cross,dislike
very funny: laugh,joy,rofl,rolling,grin,clown,tears
crying: cry,tear,sad,sob
scared: fear,scream,anxious,fright,ghost,shock
tired: tired,sleep,yawn,weary,bed,battery low,exhaust
sick person: sick,thermometer,mask,nausea,vomit,ill,virus,bandage,head bandage,sneez
surprised: astonish,surpris,open mouth,hushed,shock,wow,flushed,exploding
confused: confus,question,puzzl,woozy,dizzy,thinking
bored: unamused,expressionless,neutral,bored,rolling eyes,yawn,meh
rich person: money,crown,king,prince,top hat,businessman,dollar
police: police,officer,badge,siren,shield,handcuff,cop
teacher: teacher,school,chalkboard,professor,education,presentation
cook: cook,chef,pan,kitchen,pot,fry,soup
builder: construction,worker,helmet,crane,hammer,hard hat,brick
farmer: farm,tractor,wheat,straw
scientist: scientist,flask,microscope,test tube,atom,lab,beaker,vial
repair: wrench,tool,hammer,screwdriver,repair,settings,bandage
cut paper: scissor,cut,knife
measure length: ruler,tape,measure,length,caliper
heavy: weight,barbell,kettlebell,elephant,anvil,scale
calculate: calculator,abacus,math,sum,plus minus,equal,count
graph going up: trend,chart,growth,up,increas
losing money: decreas,trending down,loss,wings,coin off,cash off
shopping: shop,cart,bag,basket,store
sale: discount,percent,tag,sale,price,offer
gift: gift,present,wrapped,box
electricity: bolt,plug,electric,light,voltage,power,battery,outlet
out of battery: battery
light up a room: bulb,lamp,light,candle,lantern
dark: moon,night,dark,eclipse,black
save a file: save,floppy,disk,download,file
open a door: door,key,unlock,lock open
password: password,key,lock,asterisk,fingerprint
hacker: code,hack,bug,terminal,ninja,spy,incognito,technologist,skull,binary
computer problem: bug,alert,device,computer,desktop,error,virus
go back: arrow,back,return,undo,left
repeat: repeat,refresh,reload,loop,rotate,cycle,again,clockwise
faster: forward,fast,speed,gauge,rocket,rabbit,run,bolt,dashboard,next,dash
bigger: plus,zoom,maxim,expand,arrows,scale,large,enlarge,increase,resize
question: question,help
idea: bulb,idea,brain,think
think about it: think,brain,bubble,thought,idea,bulb
wedding: ring,bride,wedding,veil,tuxedo,couple,church,married,chapel
death: skull,coffin,grave,tomb,urn,cross,ghost,dead,death,headstone
medicine: pill,capsule,medic,syringe,prescription,mortar,bottle,vaccine
hospital: hospital,medical,ambulance,building
injury: bandage,injur,crutch,wound,adhesive,broken bone,blood
teeth: tooth,teeth,dental,mouth
world peace: peace,dove,globe,world,earth
environment: leaf,recycl,tree,plant,earth,globe,seedling,eco,herb
big tree: tree,palm,evergreen
bad weather: storm,rain,lightning,tornado,thunder,cloud,wind,snow,hurricane,cyclone
end of the rain: rainbow,sun,umbrella,cloud
holiday at the beach: beach,umbrella,island,sun,palm,wave,shore
sleeping outdoors: tent,camp,sleep,bed
mountain climbing: mountain,climb,hiking,ski
find the way: compass,map,signpost,direction,route,navigation,location,gps
where am i: map,pin,location,compass,gps,current,navigation,marker,position
christmas: santa,christmas,tree,deer,gift,claus,sleigh,snowman,candy cane,holly
halloween: pumpkin,jack,ghost,bat,witch,skull,vampire,zombie,spider
magic: wand,magic,mage,crystal,hat,sparkle,unicorn,rabbit,star
royalty: king,queen,crown,prince,princess,castle,chess
old man: old,grand,beard,cane,elder
"""
KNOWN = """
save money: piggy,pig money,saving,bank,money bag,wallet
surf the internet: www,browser,globe,internet,web,world
pay with plastic: credit,card,payment
win a competition: trophy,medal,award,winner,podium
throw away: trash,waste,bin,litter,delete,recycle
look for something: magnif,search,binocular,zoom,looking,find
print a document: print
space travel: rocket,astronaut,ufo,planet,spaceship,shuttle,satellite
ring someone: phone,call,telephone
tell others: share,megaphone,speak,speech,broadcast,announce,message,shout
slow animal: snail,turtle,sloth,tortoise
wealthy: money,dollar,coin,rich,gem,diamond,cash
goodbye: wav,bye,hand
robber: thief,robber,ninja,mask,spy,burglar,criminal,secret,detective,incognito
boss: manager,boss,tie,office worker,king,crown,leader,businessman
wash your hands: hand wash,wash hands,soap,hands bubbles,sink,faucet,sanitiz
clean the floor: broom,mop,vacuum,clean,bucket,sweep
earthquake: earthquake,crack,seism,richter,volcano,house crack
traffic jam: traffic,car,vehicle
"""


def parse(table: str) -> list[tuple[str, list[str]]]:
    """(query, words of which one makes a name fair)."""
    rows = [line.split(": ") for line in table.strip().splitlines()]
    return [(query, words.split(",")) for query, words in rows]


def fair(name: str, words: Sequence[str]) -> bool:
    return any(re.search(rf"\b{re.escape(w)}" + (r"s?\b" if len(w) <= 3 else ""), name.lower()) for w in words)


def main() -> None:
    from genius import Genius, Index, Modality, Query
    from genius.search import SearchRequest

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("index", type=Path)
    parser.add_argument("--model", default="bundled:mini")
    args = parser.parse_args()
    index = Index(args.index, Genius.from_pretrained(args.model), create=False)
    for title, table in (("new", NEW), ("known misses", KNOWN)):
        rows = parse(table)
        answers = index.search_many([Query(text=query, target=Modality.IMAGE) for query, _ in rows], SearchRequest(5))
        names = [[str(hit.item.metadata.get("name")) for hit in hits] for hits in answers]
        right = [any(fair(n, words) for n in five) for five, (_, words) in zip(names, rows, strict=True)]
        print(f"{title}: {sum(right)} of {len(rows)}")
        for (query, _), five, ok in zip(rows, names, right, strict=True):
            if not ok:
                print(f"  {query}: {', '.join(five)}")


if __name__ == "__main__":
    main()
